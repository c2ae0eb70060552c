//! `warmpath key offline`: API keys for the config file.

use credentials::GeneratedKey;

/// Options of `warmpath key offline`.
#[derive(Debug, clap::Args)]
pub struct OfflineArgs {
    /// The tenant that the key belongs to
    #[arg(long, default_value = "default")]
    tenant: String,
}

/// Prints a new key and the lines that let it in. The key is shown this once: the config holds
/// only a hash of its secret part.
///
/// # Errors
/// When the system gives no randomness.
pub fn offline(args: &OfflineArgs) -> anyhow::Result<()> {
    let key = GeneratedKey::generate(&args.tenant)?;
    println!("{}\n", key.secret_text());
    println!(
        "# Give the line above to its user; it is not stored anywhere. Add these to the config:"
    );
    println!("{}", key.config_lines());
    println!("# And this, unless the tenant has an entry already:\n{}", key.tenant_lines());
    Ok(())
}
