"""Processes: who they are (`processes`), which exist (`procscan`), whose Pod they are of (`cgroups`), those we start
(`children`, `supervisors`), and how they ended (`exitcodes`)."""
