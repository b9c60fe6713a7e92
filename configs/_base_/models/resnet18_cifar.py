# ResNet-18 with a 3x3 stem and no pooling, for images of 32 x 32: 11,173,962 parameters
model = dict(
    type="ResNet", depth=18, stem="cifar", num_classes=10, zero_init_residual=True
)
loss = dict(type="CrossEntropyLoss")
