"""Train the planted model: `python -m scripts.plant_by_training --out FOLDER`; how is said in meridian/training/planting.py."""

from meridian.training.planting import main

if __name__ == "__main__":
    main()
