"""`aliquot demo`: shows in two minutes how cards are shared, and measures it.

command.py    options, choice of cards, exit code
scenario.py   the parts, in order
crowd.py      the fifth part: more memory than the card has
processes.py  a separate daemon in a temporary folder, and the tenants on its cards
cleanup.py    ends everything that was started, however the demo ends
output.py     live bars on a terminal, plain lines otherwise
promises.py   promised and measured values, the verdict, and the time per part; pure functions
pods.yaml     the Pods of the first part
"""
