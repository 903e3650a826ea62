"""The group coordinator: plain values and callbacks, on two purgatories and no network."""
