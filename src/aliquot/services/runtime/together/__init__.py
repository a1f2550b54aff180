"""Groups whose members share a card in space (docs/together.md): `groups` starts and ends their MPS servers, `members`
reads what a server's members do."""
