"""What programs report about themselves, as msgspec structs: producers build them, consumers decode them.

machine    the status of a machine's daemon and of a node's agent: `aliquot ps`, `top`, metrics, doctor
requests   what is asked of a daemon over its control socket
answers    what a machine's daemon answers to single operations
reading    what NVML reported last of a card, of which the status is made
burn       what `aliquot burn` measured
probe      what `aliquot probe` measured
scheduler  the status of the scheduler
dashboard  the dashboard's API; web/src/contract.ts is generated from it
printed    what commands print with -o json
messages   its sentences, as codes with values

Field names are the JSON names. A field that only some programs report is UNSET in the others: absent from the JSON.
"""
