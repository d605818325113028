"""The explorer: the notes' walk from transformer to comparison, for the reader's own model, hardware and trace.

`choices` holds what the reader chose, `sources` what that implies, `parts/` one screen a file, made of the package's
public functions. `page` shows them in Streamlit, which `serve` starts; `static` shows them in one file. Nothing is
computed here that the command line does not print.
"""
