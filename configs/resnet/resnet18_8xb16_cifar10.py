# ResNet-18 on CIFAR-10 in the CIFAR form (He et al. 2016), MMClassification's schedule.
# Data: unpack https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz in data/cifar10.
_base_ = [
    "../_base_/models/resnet18_cifar.py",
    "../_base_/datasets/cifar10_bs16.py",
    "../_base_/schedules/cifar10_bs128.py",
    "../_base_/default_runtime.py",
]
