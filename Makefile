# Every target is a command of ./dev, which needs no make: see `./dev help`.
.DEFAULT_GOAL := help
.PHONY: help demo test long lint types contracts docs site packaging bench kills matrix run-matrix stress soak pykka-suite removals build check
help demo test long lint types contracts docs site packaging bench kills matrix run-matrix stress soak pykka-suite removals build check:
	@./dev $@
