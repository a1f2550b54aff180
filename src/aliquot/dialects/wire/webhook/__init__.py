"""Our admission webhook, as the API server sees it. Pure.

admission.py        a review of a new Pod or template, and our answer
podlimits.py        limits from requests
matchconditions.py  which objects the API server sends, in CEL
configuration.py    the webhook's objects at the API server
slots.py            which replica each Service of the webhook selects
"""
