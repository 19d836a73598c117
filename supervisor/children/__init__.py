"""Child processes: started apart from the files that this process has open, waited for, and ended."""
