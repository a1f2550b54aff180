"""What options of `aliquot run` allow: the command and the daemon say the same. Nothing heavy is imported here."""

PARK_ALLOWED = "0 to 24h, for example 30s"
PARK_WHOLE = "nothing with whole cards, which are shared with no other run: add --memory"
PARK_SEVERAL = "nothing with several cards: memory leaves only runs with one"
TOGETHER_WHOLE = PARK_WHOLE
TOGETHER_PARK = "nothing with --park: memory of a group's members does not leave the card"
LATENCY_ALLOWED = "0.1ms to 10s, for example 2ms"
LATENCY_ONLINE = "nothing without --class online: only online work takes the card from others"
