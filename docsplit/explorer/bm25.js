// Search by words: BM25 in Lucene's form, as the index of search.py has it. Texts are cut into words as
// docsplit/data/words.py cuts them, by the same patterns: stems without stop-words, identifiers, U.S.A. and Wi-Fi whole
// and in parts. The page brings the stems of all its words.
const K1 = 1.5, B = 0.75;

function cutterOf(words) {
  const compiled = (name) => new RegExp(words[name].replace(/\\U0*([0-9a-f]+)/g, "\\u{$1}"), "gu");  // Python's escapes
  const [apart, hidden, digit, runs, letter, borders, joined, numbers, joints, pieces] =
    ["apart", "hidden", "digit", "runs", "letter", "borders", "joined", "numbers", "joints", "pieces"].map(compiled);
  const numbered = new RegExp(`^(?:${words.numbered})$`, "u");
  const left = new Set(words.stop_words), known = new Map(Object.entries(words.stems));
  const valueOf = (sign) => {
    let before = sign.codePointAt(0);
    while (/\p{Nd}/u.test(String.fromCodePoint(before - 1))) before -= 1;
    return (sign.codePointAt(0) - before) % 10;
  };
  const normal = (text) => {
    let written = text.replace(apart, " ").normalize("NFKC");
    for (const [other, usual] of Object.entries(words.letters)) written = written.replaceAll(other, usual);
    return written.replace(hidden, "").normalize("NFKC").replace(digit, valueOf);
  };
  const wordsOf = (run) => {
    const letters = run.match(letter);
    if (letters && run.search(letter) === 0) {
      const pairs = letters.slice(1).map((second, place) => letters[place] + second);
      return [...pairs, ...letters.filter((one) => one.length > 1)];
    }
    const number = run.match(numbered);
    const parts = number ? number.slice(1).filter((part) => part) : run.split(borders);
    return parts.length > 1 ? [run, ...parts.filter((part) => part.length > 1 || /[0-9]/.test(part))] : [run];
  };
  const cut = (text) => {
    const written = normal(text);
    const whole = [joined, numbers].flatMap((pattern) => written.match(pattern) || [])
      .map((piece) => piece.replace(joints, ""));
    return [...(written.match(runs) || []).flatMap(wordsOf), ...whole]
      .map((word) => word.replaceAll("\u0130", "i").toLocaleLowerCase(words.locale))
      .filter((word) => !left.has(word)).map((word) => known.get(word) || word);
  };
  return { pieces, cut };
}

// Postings of each word: row, count, row, count ...
function indexTexts(texts, cut) {
  const postings = new Map(), lengths = new Uint32Array(texts.length);
  texts.forEach((text, row) => {
    const counts = new Map();
    for (const word of cut(text)) {
      counts.set(word, (counts.get(word) || 0) + 1);
      lengths[row] += 1;
    }
    for (const [word, count] of counts) {
      const list = postings.get(word);
      if (list) list.push(row, count); else postings.set(word, [row, count]);
    }
  });
  return { postings, lengths, mean: lengths.reduce((sum, length) => sum + length, 0) / Math.max(texts.length, 1) };
}

// A last word that no text has is taken for the beginning of one, while somebody types. Any other is taken for its
// longest beginning that is a stem: its own stem is not known.
function meanings(index, words) {
  return words.map((word, place) => {
    if (index.postings.has(word)) return [word];
    const longer = [...index.postings.keys()].filter((known) => place === words.length - 1 && known.startsWith(word));
    if (longer.length) return longer;
    const shorter = [1, 2, 3, 4].map((letters) => word.slice(0, -letters)).filter((start) => start.length > 3);
    return [shorter.find((start) => index.postings.has(start)) || word];
  });
}

// Rows with one of the words, the best first, their scores, and the words that were looked for.
function rank(index, words) {
  const scores = new Map(), size = index.lengths.length, lookedFor = new Set();
  for (const forms of meanings(index, words)) {
    const counts = new Map();
    for (const form of forms) {
      const list = index.postings.get(form) || [];
      for (let place = 0; place < list.length; place += 2) {
        counts.set(list[place], (counts.get(list[place]) || 0) + list[place + 1]);
      }
      lookedFor.add(form);
    }
    const weight = Math.log(1 + (size - counts.size + 0.5) / (counts.size + 0.5));
    for (const [row, count] of counts) {
      const part = count / (count + K1 * (1 - B + B * index.lengths[row] / index.mean));
      scores.set(row, (scores.get(row) || 0) + weight * part);
    }
  }
  const rows = [...scores.keys()].sort((a, b) => scores.get(b) - scores.get(a) || a - b);
  return { rows, scores: rows.map((row) => scores.get(row)), words: lookedFor };
}

// A text in pieces: [piece, whether it has one of the stems].
function piecesOf(text, { pieces, cut }, stems) {
  const parts = [];
  let end = 0;
  for (const match of text.matchAll(pieces)) {
    if (!cut(match[0]).some((stem) => stems.has(stem))) continue;
    if (match.index > end) parts.push([text.slice(end, match.index), false]);
    parts.push([match[0], true]);
    end = match.index + match[0].length;
  }
  if (end < text.length) parts.push([text.slice(end), false]);
  return parts;
}
