"""Write the libraries of the report's charts anew: Vega, Vega-Lite and Vega-Embed in one script.

pip install vl-convert-python==1.9.0.post1
python .ci/vega.py
"""

from pathlib import Path

import vl_convert

TARGET = Path(__file__).parents[1] / "workbench/reproduction/report/templates/vega.js"
LICENCE = "/* Vega, Vega-Lite and Vega-Embed, (c) University of Washington Interactive Data Lab, BSD-3-Clause;"
TARGET.write_text(
    f"{LICENCE} written by .ci/vega.py with vl-convert {vl_convert.__version__}. */\n{vl_convert.javascript_bundle()}\n"
)
