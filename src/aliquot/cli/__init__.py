"""WHAT IS SEEN?  Commands and views: reading files, printing tables, drawing. No rules.

main.py       the command `aliquot`, and every way out of it
explain.py    where Pods would go, or every reason why not
reasons.py    the reasons of five thousand nodes in a few lines
simulate.py   what a policy makes of a trace
manifests.py  the files people hand us, as Kubernetes objects with line and column
values.py     YAML as plain values
errors.py     what goes wrong before any work is done
plot.py       line charts as SVG
tables.py     plain columns
"""
