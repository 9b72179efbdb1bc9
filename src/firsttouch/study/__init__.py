"""Studies: published tables of the field, reproduced by the model, with the error of every cell.

A table is a file (`table.py`): what was published, and how the model is asked the same (`ask.py`). `run.py` runs what a
set of tables asks, `compare.py` puts published and model side by side, `fit.py` fits a machine's constants to cells
that are named for it, and says what the others come to when one table is left out.
"""
