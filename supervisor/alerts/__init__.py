"""Telling people: payloads, signatures, webhooks, delivery; it decides neither what is wrong nor what to do."""
