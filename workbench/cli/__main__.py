"""`python -m workbench.cli`: the command line where the console command is not on the path."""

from workbench.cli import main

main()
