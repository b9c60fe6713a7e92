"""Packages of OpenMMLab on MMCV 1.x: their registries as scopes, configs and models."""
