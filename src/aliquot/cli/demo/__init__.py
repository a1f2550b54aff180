"""`aliquot demo`: shows in two minutes how cards are shared, and measures it.

command.py   options, choice of cards, the final table, exit code
story.py     the five parts, in order: commands of `aliquot`, and what they did
sandbox.py   a daemon and tenants in a temporary folder, which are gone however the demo ends
promises.py  promised and measured values, and the time per part; pure functions
pods.yaml    the Pods of the first part
"""
