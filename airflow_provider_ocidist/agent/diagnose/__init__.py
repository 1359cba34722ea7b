"""Why a training failed."""
