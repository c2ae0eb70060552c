# Short names; nothing needs `just`.

# Format the code
fmt:
    cargo fmt --all

# Lints, as the test command runs them
lint:
    ./integration-tests/run --only fmt,clippy

# Everything that is tested
test *ARGS:
    ./integration-tests/run {{ARGS}}

# Documentation without warnings
doc:
    ./integration-tests/run --only doc

# Licences, advisories and sources of the dependencies (needs cargo-deny)
deny:
    cargo deny --workspace check

# Run the benches
bench:
    cargo bench --workspace

# Three engine doubles and the gateway: round robin against prefix
demo *ARGS:
    cargo run --release -- demo {{ARGS}}

# What CI runs
verify:
    ./.ci/run
