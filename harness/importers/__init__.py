"""Foreign campaigns into campaign directories like any other. Reads what it is named, writes runs.

`import bmoe`: sessions of the other engine (`bmoe`); `import csv`: plain tables (`plain_csv`). What
a file does not say is None in the record, never 0 (docs/import.md).
"""
