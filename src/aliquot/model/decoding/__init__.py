"""Reads what others write: JSON whose shape they decide (`openjson`), JSON nested too deep for a decoder
(`shallowjson`), and codes that a later release may add to (`opencode`)."""
