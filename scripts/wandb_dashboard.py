"""Save the W&B workspace "circuits x calibrations" to a project: python -m scripts.wandb_dashboard --entity TEAM.

Needs the extra `dashboard` (wandb-workspaces) and a W&B login.
"""

from __future__ import annotations

import argparse


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--entity", required=True, help="the team or user that the project belongs to")
    parser.add_argument("--project", default="meridian", help="as in tracker.project")
    asked = parser.parse_args()
    from meridian.trackers import dashboard

    print(dashboard.build(asked.entity, asked.project).save().url)


if __name__ == "__main__":
    main()
