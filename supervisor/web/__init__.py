"""The web page: a process of its own that shows the record and the live state, and can change nothing.

It opens the database read-only (`supervisor/store/series.py`) and sends the daemon GET requests only. It imports
neither the daemon nor what a training needs; import contracts hold it so.
"""
