pytest_plugins = ["abeyance.actors.testing.plugin"]
