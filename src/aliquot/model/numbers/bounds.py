"""What a run or a Pod may ask for, as far as it is a number. Imported by `aliquot run`: nothing heavy."""

LONGEST_PARK = 86400.0  # seconds idle until memory may leave the card
LEAST_LATENCY, MOST_LATENCY = 0.0001, 10.0  # seconds that online work may accept
