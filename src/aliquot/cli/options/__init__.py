"""Options that several commands share, and what people type after them."""
