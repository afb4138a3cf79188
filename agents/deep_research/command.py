"""Deep research as a command: `orchestrate run deep-research`."""

from agents.deep_research.markdown import to_json, to_markdown
from agents.deep_research.pipeline import deep_research, expected_stages
from agents.pipeline import Pipeline

PIPELINE = Pipeline(
    flow=deep_research,
    argument="question",
    example=(
        'orchestrate run deep-research "How is a deadline divided?" --corpus docs'
        " --deadline 60s --out report"
    ),
    expected_stages=lambda arguments: expected_stages(arguments["rounds"]),
    to_markdown=to_markdown,
    to_json=to_json,
    file_name="report",
)
