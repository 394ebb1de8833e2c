//! What files say of the SSD store.
//!
//! Owns tables of files. Never starts a daemon.

use crate::place::{GIB, MIB, Place, set, spec};
use std::fs;
use undercroft_config::SsdAdmission;

const DISK: &str = "[[disk]]\nname = \"a\"\nimage = \"a.raw\"\n";

#[test]
fn a_store_is_there_if_asked_for_with_the_defaults_filled_in() {
    let place = Place::new();
    let none = place.good(DISK).ssd;
    assert!(!none.is_wanted() && none.size_bytes.is_none() && !none.format);
    let plan =
        place.good(&format!("[ssd]\npaths = [\"ssd0\", \"{}\"]\nsize = \"1GiB\"\n{DISK}", place.at("ssd1").display()));
    assert_eq!(plan.ssd.paths, [place.at("ssd0"), place.at("ssd1")], "from the directory of the file");
    assert_eq!((plan.ssd.size_bytes, plan.ssd.segment_bytes), (Some(GIB), 2 * MIB));
    assert_eq!((plan.ssd.writes_per_day_bytes, plan.ssd.admit, plan.ssd.format), (None, SsdAdmission::Measured, false));
    let plan = place.good(&format!(
        "[ssd]\npaths = [\"ssd0\"]\nsize = \"64MiB\"\nsegment = \"256KiB\"\nwrites_per_day = \"2TiB\"\nadmit = \
         \"all\"\n\
         format = true\n{DISK}"
    ));
    assert_eq!((plan.ssd.segment_bytes, plan.ssd.writes_per_day_bytes), (256 << 10, Some(2 << 40)));
    assert_eq!((plan.ssd.admit, plan.ssd.format), (SsdAdmission::All, true));
    assert!(!place.at("ssd0").exists(), "a check makes nothing");
}

#[test]
fn what_the_tables_take_is_set_aside_in_the_memory_of_the_store() {
    let place = Place::new();
    let text = |memory: &str, size: &str| {
        format!(
            "[store]\nmemory = \"{memory}\"\n[daemon]\nworkers = 2\n[ssd]\npaths = [\"ssd0\", \"ssd1\"]\nsize = \
             \"{size}\"\n{DISK}"
        )
    };
    let plan = place.good(&text("64MiB", "1GiB"));
    let aside = plan.ssd.memory_bytes;
    // Two of them for two workers: 10 to 12 bytes for each block, and staged blocks.
    assert!((2 * 10 * (GIB / 4096)..2 * 12 * (GIB / 4096) + 8 * MIB).contains(&aside), "{aside}");
    assert_eq!((plan.store.memory_bytes, plan.disks_bytes()), (64 * MIB, 64 * MIB - aside));
    assert!(plan.disks[0].share_bytes <= plan.disks_bytes(), "{}", plan.disks[0].share_bytes);
    let said = place.bad(&text("64MiB", "1TiB"));
    // Two of 1 TiB: just less than 12 bytes for each block.
    let needle = ":7: error: ssd: the tables of the SSD store take 5.9GiB of store.memory, which is 64MiB; make";
    assert!(said.contains(needle), "{said}");
    let sized = text("64MiB", "1GiB") + "size = \"62MiB\"\n";
    let said = place.bad(&sized);
    assert!(said.contains("size is 62MiB, but the memory of the store is"), "{said}");
    assert_eq!(place.good(DISK).ssd.memory_bytes, 0, "nothing without an SSD store");
}

#[test]
fn every_mistake_is_named_with_its_remedy() {
    let place = Place::new();
    fs::create_dir(place.at("dir")).unwrap();
    let said = place.bad(&format!(
        "[ssd]\npaths = [\"ssd0\", \"ssd0\", \"dir\", \"no/ssd\"]\nsize = \"1MiB\"\nsegment = \"3MiB\"\n\
         writes_per_day = \"1MiB\"\nadmit = \"secnd\"\nformat = \"yes\"\n{DISK}"
    ));
    for needle in [
        ":2: error: ssd: paths names ssd0 twice; name each file and device once",
        &format!(":2: error: ssd: {} is neither a file nor a block device", place.at("dir").display()),
        &format!("the directory of {} does not exist; make it with `mkdir -p", place.at("no/ssd").display()),
        ":3: error: ssd: size is 1MiB, too little for a store; give at least 64MiB for each file",
        ":4: error: ssd: segment must not be 3MiB; give a power of two from 256KiB to 16MiB",
        ":5: error: ssd: writes_per_day is 1MiB, too little to fill a store with; give at least 1GiB",
        ":6: error: ssd: admit: unknown word \"secnd\"; did you mean \"second\"? known are measured, second, all, none",
        ":7: error: ssd: \"format\" must be true or false, not a text",
    ] {
        assert!(said.contains(needle), "{needle}\nis missing in\n{said}");
    }
    let said = place.bad(&format!("[ssd]\nadmit = \"all\"\n{DISK}"));
    assert!(said.contains(":2: error: ssd: it has no paths; add paths = ["), "{said}");
    let said = place.bad(&format!("[ssd]\npaths = [\"ssd0\"]\n{DISK}"));
    assert!(said.contains(":2: error: ssd: it has no size, and"), "{said}");
    assert!(said.contains("add size = \"100GiB\""), "{said}");
    let many: Vec<String> = (0..17).map(|n| format!("\"ssd{n}\"")).collect();
    let said = place.bad(&format!("[ssd]\npaths = [{}]\nsize = \"1GiB\"\n{DISK}", many.join(", ")));
    assert!(said.contains("paths names 17 files, more than 16; make them fewer and larger"), "{said}");
}

/// The store would write over the image. However the file is called, and whoever comes first.
#[test]
fn no_file_of_the_store_belongs_to_an_image() {
    let place = Place::new();
    std::os::unix::fs::symlink(place.at("a.raw"), place.at("link")).unwrap();
    std::os::unix::fs::symlink(place.at("ssd0"), place.at("ssd1")).unwrap();
    fs::write(place.at("ssd0"), b"").unwrap();
    let said = place.bad(&format!("[ssd]\npaths = [\"link\"]\nsize = \"1GiB\"\n{DISK}"));
    assert!(said.contains(":2: error: ssd:") && said.contains("belongs to the image of disk \"a\""), "{said}");
    let said = place.bad(&format!("[ssd]\npaths = [\"ssd0\", \"ssd1\"]\nsize = \"1GiB\"\n{DISK}"));
    assert!(said.contains("are one file; name each file and device once"), "{said}");
    fs::rename(place.at("b.raw"), place.at("ssd0")).unwrap();
    let plan = place.good(&format!("[ssd]\npaths = [\"ssd0\"]\nsize = \"1GiB\"\n{DISK}"));
    let refused = plan.with_disk(&spec(&place, "b", "ssd0"), &place.machine).unwrap_err().to_string();
    assert!(refused.contains("belongs to the image of disk \"b\""), "{refused}");
}

/// With an SSD store there are three choices; each can be set live. Whatever is said of the store itself takes a
/// restart.
#[test]
fn stores_of_nodes_are_chosen_and_the_store_itself_takes_a_restart() {
    let place = Place::new();
    let ssd = "[ssd]\npaths = [\"ssd0\"]\nsize = \"1GiB\"\n";
    let plan = place.good(&format!(
        "{ssd}[[vm]]\nname = \"web\"\nstore = \"both\"\n[[vm.disk]]\nname = \"a\"\nimage = \
        \"a.raw\"\nstore = \"ssd\"\n"
    ));
    let store = |plan: &undercroft_config::ServePlan, node: &str| plan.settings()[node].keys["store"].clone();
    assert_eq!((store(&plan, "web").as_str(), store(&plan, "web:a").as_str()), ("both", "ssd"));
    for choice in ["ram", "ssd", "both"] {
        assert_eq!(store(&plan.with_node("web", &set("store", choice)).unwrap(), "web"), choice);
        assert_eq!(store(&plan.with_change("web:a", &set("store", choice)).unwrap(), "web:a"), choice);
    }
    let old = place.good(&format!("{ssd}{DISK}"));
    let change = old.difference(&place.good(&format!("{ssd}admit = \"none\"\nsegment = \"1MiB\"\n{DISK}")));
    assert_eq!(change.needs_restart, ["ssd.segment: 2MiB -> 1MiB", "ssd.admit: measured -> none"]);
    assert_eq!(change.result.unwrap().ssd, old.ssd);
}

/// A disk on SSDs alone leaves the RAM to the others; whoever promised it some keeps the promise.
#[test]
fn a_disk_on_ssds_alone_has_of_ram_what_serving_takes() {
    let place = Place::new();
    let disk = |name: &str, image: &str, more: &str| {
        format!("[[vm.disk]]\nname = \"{name}\"\nimage = \"{image}\"\nformat = \"raw\"\nweight = 50\n{more}\n")
    };
    let text = |vm: &str, a: &str| {
        let disks = disk("a", "a.raw", a) + &disk("b", "b.raw", "store = \"both\"");
        format!(
            "[store]\nmemory = \"1GiB\"\n[ssd]\npaths = [\"ssd0\"]\nsize = \"1GiB\"\n[[vm]]\nname = \
             \"web\"\n{vm}\n{disks}"
        )
    };
    let share = |plan: &undercroft_config::ServePlan, name: &str| plan.find(name).unwrap().share_bytes;
    let plan = place.good(&text("store = \"ssd\"", ""));
    // What is not set aside for the tables of the store.
    let memory = plan.disks_bytes();
    let rest = memory - 4 * MIB;
    assert_eq!((share(&plan, "web:a"), share(&plan, "web:b")), (4 * MIB, rest), "what the VM says holds for a");
    let plan = place.good(&text("", "store = \"ssd\"\nfloor = \"100MiB\""));
    assert_eq!(share(&plan, "web:a"), 100 * MIB);
    let plan = place.good(&text("", "store = \"ram\""));
    // Whole blocks: of an odd number one has one more.
    assert!(share(&plan, "web:a").abs_diff(memory / 2) <= 4096, "{} of {memory}", share(&plan, "web:a"));
    let live = plan.with_change("web:a", &set("store", "ssd")).unwrap();
    assert_eq!((share(&live, "web:a"), share(&live, "web:b")), (4 * MIB, rest), "at once, too");
}
