"""A right program for each of the 24 problems of x01_small_functions, by item, and one that fails a test of it."""

from __future__ import annotations

RIGHT = {
    "count_vowels": "    return sum(c in 'aeiou' for c in text.lower())",
    "second_largest": "    s = sorted(set(numbers))\n    return s[-2] if len(s) > 1 else None",
    "is_palindrome": "    s = [c.lower() for c in text if c.isalpha()]\n    return s == s[::-1]",
    "running_sum": "    out, total = [], 0\n    for n in numbers:\n        total += n\n        out.append(total)\n    return out",
    "digits_sum": "    return sum(map(int, str(abs(number))))",
    "interleave": "    out = []\n    for i in range(max(len(first), len(second))):\n        out += first[i:i+1] + second[i:i+1]\n    return out",
    "fahrenheit": "    return celsius * 9 / 5 + 32",
    "longest_word": "    return max(text.split(), key=len, default='')",
    "count_words": "    out = {}\n    for w in text.lower().split():\n        out[w] = out.get(w, 0) + 1\n    return out",
    "clamp": "    if low > high:\n        raise ValueError('low above high')\n    return min(max(value, low), high)",
    "transpose": "    return [list(c) for c in zip(*rows)]",
    "gcd": "    while b:\n        a, b = b, a % b\n    return a",
    "caesar": "    out = ''\n    for c in text:\n        if c.isascii() and c.isalpha():\n            b = ord('a') if c.islower() else ord('A')\n            c = chr((ord(c) - b + shift) % 26 + b)\n        out += c\n    return out",
    "flatten": "    out = []\n    for one in nested:\n        out += solution(one) if isinstance(one, list) else [one]\n    return out",
    "is_prime": "    return number > 1 and all(number % d for d in range(2, int(number ** 0.5) + 1))",
    "remove_duplicates": "    return list(dict.fromkeys(items))",
    "mean": "    if not numbers:\n        raise ValueError('empty')\n    return sum(numbers) / len(numbers)",
    "roman": "    out = ''\n    for v, s in ((1000,'M'),(900,'CM'),(500,'D'),(400,'CD'),(100,'C'),(90,'XC'),(50,'L'),(40,'XL'),(10,'X'),(9,'IX'),(5,'V'),(4,'IV'),(1,'I')):\n        while number >= v:\n            out += s\n            number -= v\n    return out",
    "merge_sorted": "    return sorted(first + second)",
    "title_case": "    return ' '.join(w[:1].upper() + w[1:].lower() for w in text.split())",
    "fibonacci": "    out, a, b = [], 0, 1\n    for _ in range(n):\n        out.append(a)\n        a, b = b, a + b\n    return out",
    "balanced": "    pairs, open_ = {')': '(', ']': '[', '}': '{'}, []\n    for c in text:\n        if c in '([{':\n            open_.append(c)\n        elif c in pairs and (not open_ or open_.pop() != pairs[c]):\n            return False\n    return not open_",
    "group_by_length": "    out = {}\n    for w in words:\n        out.setdefault(str(len(w)), []).append(w)\n    return out",
    "rotate": "    if not items:\n        return []\n    k = places % len(items)\n    return items[-k:] + items[:-k] if k else items[:]",
}
WRONG = "    return 0 if True else None\n"  # of no problem the whole answer
