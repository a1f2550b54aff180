"""The cards: one loop each (`cardloop`) that performs the arbiter's orders, the proof that these have an effect
(`proving`), health (`health`), load (`meter`) and the record of who had the card (`trace`)."""
