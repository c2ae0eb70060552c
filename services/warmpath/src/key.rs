//! `warmpath key offline`: API keys for the config file.

use credentials::GeneratedKey;

/// Options of `warmpath key offline`.
#[derive(Debug, clap::Args)]
pub struct OfflineArgs {
    /// The tenant that the key belongs to
    #[arg(long, default_value = "default")]
    tenant: String,
}

/// Prints a new key, alone to standard output, and to standard error the lines that let it in. The
/// key is shown this once: the config holds only a hash of its secret part.
///
/// # Errors
/// When the system gives no randomness.
pub fn offline(args: &OfflineArgs) -> anyhow::Result<()> {
    let key = GeneratedKey::generate(&args.tenant)?;
    println!("{}", key.secret_text());
    eprintln!(
        "\n# Give the key to its user; it is not stored anywhere. Add these lines to the config:"
    );
    eprintln!("{}", key.config_lines());
    eprintln!("# And this, unless the tenant has an entry already:\n{}", key.tenant_lines());
    Ok(())
}
