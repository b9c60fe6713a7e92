"""The SDK's private parts that training code nevertheless imports."""
