"""Processes: who they are (`processes`), which exist (`procscan`), whose Pod they are of (`cgroups`), those we start
(`children`, `scripts`, and our own command lines: `ourselves`), and how they ended (`exitcodes`)."""
