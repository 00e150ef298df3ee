"""The presets: installed as `segplan.presets`, read by `segplan.api.config`."""
