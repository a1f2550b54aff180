"""Other products beside ours: gpushare, another device plugin, Kueue."""
