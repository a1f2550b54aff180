"""How it is said: every sentence about a refusal, a request or an amount, made from data. Pure, and light enough for
`aliquot run`, which must start in 50 ms.
"""
