//! One Parquet file: rows of one table, sorted, compressed with Zstandard, with statistics per row group and page.
//!
//! The file's metadata lists the keys of its rows, so that a later export finds what it replaces without reading rows.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical, ZstdLevel};
use parquet::column::reader::ColumnReader;
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{ColumnPath, Type as Node};

use crate::VERSION;
use crate::folder;
use crate::rows::{Data, NO_TEXT, Rows, Value};
use crate::schema::{Column, Keep, Table, Type};

/// Rows of a row group: engines skip groups whose statistics exclude them.
const GROUP: usize = 1 << 17;
/// Names in the metadata of a file.
const KEYS: &str = "culeak.keys";
const VERSION_KEY: &str = "culeak.version";
/// Keys are separated by this; none contains it.
const SEPARATOR: char = '\n';

/// What identifies rows: see [`Keep`].
pub type Keys = BTreeSet<String>;

/// The key of a row, which no row of another process or job has; `None` for tables whose rows are not replaced.
pub fn key(rows: &Rows, row: usize) -> Option<String> {
    let table = rows.table;
    let text = |name| table.column(name).map_or("", |column| rows.text(column, row));
    let process = format!(
        "{:08x}.{}",
        folder::hash(text("job").as_bytes()) as u32,
        text("process")
    );
    match table.keep {
        Keep::Latest => Some(process),
        Keep::EachPoint => {
            let point = text("point").replace(SEPARATOR, " ");
            // A process has one end and one peak, and many points at which it was running.
            let at = match table.column("at_unix_ns").map(|column| rows.value(column, row)) {
                Some(Value::Number(at)) if point == crate::NOW => at,
                _ => 0,
            };
            Some(format!("{process}:{at}:{point}"))
        }
        Keep::Forever => None,
    }
}

/// Writes rows, without the columns that the names of folders contain.
///
/// # Errors
/// The file cannot be written.
pub fn write(rows: &Rows, without: &[&str], keys: &Keys, out: File) -> io::Result<()> {
    write_groups(rows, without, keys, out).map_err(io::Error::other)
}

fn columns<'t>(table: &'t Table, without: &[&str]) -> Vec<(usize, &'t Column)> {
    let all = table.columns.iter().enumerate();
    all.filter(|(_, column)| !without.contains(&column.name)).collect()
}

fn write_groups(rows: &Rows, without: &[&str], keys: &Keys, out: File) -> Result<(), ParquetError> {
    let columns = columns(rows.table, without);
    let fields = columns
        .iter()
        .map(|(_, column)| field(column))
        .collect::<Result<Vec<_>, _>>()?;
    let schema = Node::group_type_builder(rows.table.name).with_fields(fields).build()?;
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let metadata = vec![
        KeyValue::new(VERSION_KEY.to_owned(), VERSION.to_string()),
        KeyValue::new(KEYS.to_owned(), keys.join(&SEPARATOR.to_string())),
    ];
    let properties = WriterProperties::builder()
        .set_created_by(format!("culeak {}", env!("CARGO_PKG_VERSION")))
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_statistics_enabled(EnabledStatistics::Page)
        .set_key_value_metadata(Some(metadata))
        .set_column_statistics_enabled(ColumnPath::from("frames"), EnabledStatistics::None);
    // Their values are almost all distinct.
    let properties = ["address", "allocated_unix_ns"]
        .iter()
        .fold(properties, |properties, &column| {
            properties.set_column_dictionary_enabled(ColumnPath::from(column), false)
        });
    let out = io::BufWriter::with_capacity(1 << 16, out);
    let mut file = SerializedFileWriter::new(out, Arc::new(schema), Arc::new(properties.build()))?;
    // A `ByteArray` is shared, not copied, so a text takes its memory once for all rows.
    let texts = |data: &Data| match data {
        Data::Texts(texts) => texts
            .distinct
            .iter()
            .map(|text| text.as_bytes().to_vec().into())
            .collect(),
        _ => Vec::new(),
    };
    let texts: Vec<Vec<ByteArray>> = rows.data.iter().map(texts).collect();
    for group in rows.sorted().chunks(GROUP) {
        let mut writer = file.next_row_group()?;
        for &(nth, _) in &columns {
            let Some(mut to) = writer.next_column()? else { break };
            // 1 for a value, 0 for NULL.
            let mut levels: Vec<i16> = Vec::with_capacity(group.len());
            match &rows.data[nth] {
                Data::Numbers(numbers) => {
                    let values = group.iter().map(|&row| numbers[row as usize]);
                    levels.extend(values.clone().map(|value| i16::from(value.is_some())));
                    let values: Vec<i64> = values.flatten().collect();
                    to.typed::<Int64Type>().write_batch(&values, Some(&levels), None)?;
                }
                Data::Flags(flags) => {
                    let values = group.iter().map(|&row| flags[row as usize]);
                    levels.extend(values.clone().map(|value| i16::from(value.is_some())));
                    let values: Vec<bool> = values.flatten().collect();
                    to.typed::<BoolType>().write_batch(&values, Some(&levels), None)?;
                }
                Data::Texts(own) => {
                    let values = group.iter().map(|&row| own.of[row as usize]);
                    levels.extend(values.clone().map(|number| i16::from(number != NO_TEXT)));
                    let present = values.filter(|&number| number != NO_TEXT);
                    let values: Vec<ByteArray> = present.map(|number| texts[nth][number as usize].clone()).collect();
                    to.typed::<ByteArrayType>().write_batch(&values, Some(&levels), None)?;
                }
            }
            to.close()?;
        }
        writer.close()?;
    }
    file.finish()?;
    file.inner_mut().flush()?;
    Ok(())
}

fn field(column: &Column) -> Result<Arc<Node>, ParquetError> {
    let (physical, logical) = match column.of {
        Type::Number => (Physical::INT64, None),
        Type::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
        Type::Flag => (Physical::BOOLEAN, None),
    };
    let field = Node::primitive_type_builder(column.name, physical)
        .with_repetition(Repetition::OPTIONAL)
        .with_logical_type(logical)
        .build()?;
    Ok(Arc::new(field))
}

/// What the metadata of a file says.
#[derive(Debug, Clone, Default)]
pub struct Footer {
    pub keys: Keys,
    pub rows: usize,
}

/// Reads the metadata of a file.
///
/// # Errors
/// It cannot be read, or is no file of this table and version.
pub fn footer(path: &Path) -> io::Result<Footer> {
    let reader = SerializedFileReader::new(File::open(path)?).map_err(io::Error::other)?;
    let metadata = reader.metadata().file_metadata();
    let found = |name: &str| {
        let all = metadata.key_value_metadata().into_iter().flatten();
        all.filter(|pair| pair.key == name)
            .find_map(|pair| pair.value.as_deref())
    };
    match found(VERSION_KEY) {
        Some(version) if version == VERSION.to_string() => {}
        Some(version) => {
            return Err(io::Error::other(format!(
                "written by dataset version {version}, this build reads version {VERSION}"
            )));
        }
        None => return Err(io::Error::other("not written by culeak")),
    }
    let keys = found(KEYS).unwrap_or_default().split(SEPARATOR);
    Ok(Footer {
        keys: keys.filter(|key| !key.is_empty()).map(str::to_owned).collect(),
        rows: usize::try_from(metadata.num_rows()).unwrap_or(0),
    })
}

/// Reads the rows of a file. `fixed` are the values of columns that the names of folders contain.
///
/// # Errors
/// It cannot be read, or has other columns than the table.
pub fn read(path: &Path, table: &'static Table, fixed: &[(&str, Value)]) -> io::Result<Rows> {
    read_groups(path, table, fixed).map_err(io::Error::other)
}

fn read_groups(path: &Path, table: &'static Table, fixed: &[(&str, Value)]) -> Result<Rows, ParquetError> {
    let reader = SerializedFileReader::new(File::open(path)?)?;
    let mut rows = Rows::new(table);
    for nth in 0..reader.num_row_groups() {
        let group = reader.get_row_group(nth)?;
        let count = usize::try_from(group.metadata().num_rows()).unwrap_or(0);
        let mut columns: Vec<Values> = Vec::with_capacity(table.columns.len());
        for column in table.columns {
            if fixed.iter().any(|(name, _)| *name == column.name) {
                columns.push(Values::Fixed);
                continue;
            }
            let all = group.metadata().columns().iter();
            let at = all
                .enumerate()
                .find(|(_, chunk)| chunk.column_path().string() == column.name);
            let Some((at, _)) = at else {
                // A file of an earlier build may lack a column.
                columns.push(Values::Fixed);
                continue;
            };
            columns.push(Values::read(group.get_column_reader(at)?, count)?);
        }
        let fixed_value = |nth: usize| {
            let fixed = fixed.iter().find(|(name, _)| *name == table.columns[nth].name);
            fixed.map_or(Value::Null, |(_, value)| *value)
        };
        for row in 0..count {
            let row: Vec<Value> = columns
                .iter()
                .enumerate()
                .map(|(nth, values)| values.at(row).unwrap_or_else(|| fixed_value(nth)))
                .collect();
            rows.push(&row);
        }
    }
    Ok(rows)
}

/// One column of a row group.
enum Values {
    /// Not in the file.
    Fixed,
    Numbers(Vec<Option<i64>>),
    Flags(Vec<Option<bool>>),
    Texts(Vec<Option<ByteArray>>),
}

impl Values {
    /// The value of a row; `None`: the column is not in the file.
    fn at(&self, row: usize) -> Option<Value<'_>> {
        Some(match self {
            Values::Fixed => return None,
            Values::Numbers(numbers) => numbers.get(row).copied().flatten().map_or(Value::Null, Value::Number),
            Values::Flags(flags) => flags.get(row).copied().flatten().map_or(Value::Null, Value::Flag),
            Values::Texts(texts) => {
                let text = texts.get(row).and_then(Option::as_ref);
                text.and_then(|text| std::str::from_utf8(text.data()).ok()).into()
            }
        })
    }

    fn read(reader: ColumnReader, count: usize) -> Result<Values, ParquetError> {
        let mut levels: Vec<i16> = Vec::new();
        macro_rules! read {
            ($reader:ident, $kind:path) => {{
                let mut values = Vec::new();
                while levels.len() < count {
                    let before = levels.len();
                    $reader.read_records(count - before, Some(&mut levels), None, &mut values)?;
                    if levels.len() == before {
                        return Err(ParquetError::General(
                            "the file has fewer rows than it lists".to_owned(),
                        ));
                    }
                }
                let mut values = values.into_iter();
                $kind(
                    levels
                        .iter()
                        .map(|&level| if level > 0 { values.next() } else { None })
                        .collect(),
                )
            }};
        }
        Ok(match reader {
            ColumnReader::Int64ColumnReader(mut reader) => read!(reader, Values::Numbers),
            ColumnReader::BoolColumnReader(mut reader) => read!(reader, Values::Flags),
            ColumnReader::ByteArrayColumnReader(mut reader) => read!(reader, Values::Texts),
            _ => return Err(ParquetError::General("a column of an unknown type".to_owned())),
        })
    }
}
