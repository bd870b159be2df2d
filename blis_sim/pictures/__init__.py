"""Pictures and pages in one style. Read `style.py` first, then `panels.py` and `page.py`.

matplotlib is loaded when a picture is drawn, not before.
"""
