"""`aliquot demo`: the two-minute story of what sharing does, told while it happens.

command.py    the options, which cards it plays on, the exit code
story.py      the scenes, in order; no figures of its own
stage.py      a daemon of its own in a folder of its own, and who plays on it
janitor.py    the end of everything that was started, whatever becomes of the story
telling.py    how it is told: with live bars to a terminal, in plain lines to everybody else
promises.py   what was promised, what was measured, held or missed; how long each scene takes; values only
pods.yaml     the Pods of the first scene
"""
