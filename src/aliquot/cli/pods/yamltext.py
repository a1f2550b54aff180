"""YAML for people and terminals: letters of all languages as they are, signs that cannot be seen escaped."""

from __future__ import annotations

from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
    """Quotes text so that its signs can be escaped, where it has some that cannot be seen."""

    def represent_text(self, text: str) -> yaml.ScalarNode:
        style = None if _seen(text) else '"'
        return self.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _Dumper.represent_text)


def yaml_text(document: Any) -> str:
    """The document. YAML itself does not escape all that steers terminals, such as the signs of right-to-left text."""
    text: str = yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
    return text if _seen(text) else "".join(sign if _seen(sign) else _escaped(sign) for sign in text)


def _seen(text: str) -> bool:
    return text.replace("\n", "").isprintable()


def _escaped(sign: str) -> str:
    """The character as YAML escapes it between double quotes."""
    code = ord(sign)
    return f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
