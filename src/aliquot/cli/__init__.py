"""WHAT IS SEEN?  Commands and views: reading files, printing tables, drawing. No rules.

main.py      the command `aliquot` and its errors
explain.py   where Pods would go, or every reason why not
simulate.py  what a policy makes of a trace
cluster.py   the files people hand us, read with line and column
plot.py      line charts as SVG
tables.py    plain columns
"""
