"""The baseline check: ResNet50 and ViT-B/16 throughput beside published figures."""
