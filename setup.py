"""What pyproject.toml cannot say: the folder configs/ is installed as segplan.presets."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["segplan", "segplan.*"]), "segplan.presets"],
    package_dir={"segplan.presets": "configs"},
)
