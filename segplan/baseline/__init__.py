"""The baseline check: ResNet50 and ViT-B/16 on a card that is here, beside published figures."""
