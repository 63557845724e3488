// Builds and updates elements. Text from outside only ever becomes text nodes
// and attribute values, never markup.

const SVG = 'http://www.w3.org/2000/svg';

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name === 'text') {
      node.textContent = value;
    } else {
      node.setAttribute(name, value === true ? '' : String(value));
    }
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

// el('p', {class: 'hint', text: 'Hello'}, child, 'more text')
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

// The same for SVG.
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

export function byId(id) {
  const node = document.getElementById(id);
  if (node === null) throw new Error(`the page has no element "${id}"`);
  return node;
}

// Sets the text only when it is another, so that selections and screen readers
// are left in peace.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setAttributes(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    const text = String(value);
    if (node.getAttribute(name) !== text) node.setAttribute(name, text);
  }
}

// Makes `parent` hold exactly `nodes`, in this order; nodes that are in place
// are not touched.
export function setChildren(parent, nodes) {
  nodes.forEach((node, i) => {
    if (parent.childNodes[i] !== node) {
      parent.insertBefore(node, parent.childNodes[i] ?? null);
    }
  });
  while (parent.childNodes.length > nodes.length) parent.lastChild.remove();
}
