"""Train the planted model: `python -m scripts.plant_by_training --out FOLDER`; meridian/training/planting.py explains how."""

from meridian.training.planting import main

if __name__ == "__main__":
    main()
