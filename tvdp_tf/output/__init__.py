"""Output of programs: folders, pictures and tables, one module for each."""
