"""install, upgrade and uninstall, with their options and progress."""
