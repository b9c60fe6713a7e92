# ResNet-18 on CIFAR-10 in the CIFAR form (He et al. 2016), MMClassification's schedule.
# Recipe: MMClassification 0.25.0, configs/resnet/resnet18_8xb16_cifar10.py. Differences:
# - the last layer begins with torch's default weights, there normal with 0.01 and bias 0
# - evaluation in batches of 256, there of 16; the best checkpoint is kept
# - no data.test, which is the validation set there: `devrun test ... --split val`
# - without a launcher the batch is 16; the recipe's 128 needs 8 processes, or
#   optimizer_config.cumulative_iters=8
# Data: unpack https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz in data/cifar10.
_base_ = [
    "../_base_/models/resnet18_cifar.py",
    "../_base_/datasets/cifar10_bs16.py",
    "../_base_/schedules/cifar10_bs128.py",
    "../_base_/default_runtime.py",
]
