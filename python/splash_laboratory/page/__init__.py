"""A run as one HTML page that needs nothing else: `python -m splash_laboratory.page report.h5 --out page.html`.

from splash_laboratory import open_report
from splash_laboratory.page import page_of
html = page_of(open_report("report.h5"))
"""

from splash_laboratory.page.build import page_of

__all__ = ["page_of"]
